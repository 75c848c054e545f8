{{/* Names, labels, and numbers that several manifests share. */}}

{{- define "eyeline.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "eyeline" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-eyeline" (.Release.Name | trunc 55 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "eyeline.selector" -}}
app.kubernetes.io/name: eyeline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "eyeline.labels" -}}
{{ include "eyeline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "eyeline.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "eyeline.name" . -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "eyeline.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{/* A value as the server reads it from a variable: Helm holds 8000000 as 8e+06; lists are separated by commas. */}}
{{- define "eyeline.plain" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if not (kindIs "float64" .) -}}
{{- . -}}
{{- else if eq . (float64 (int64 .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* Seconds that a pod has from SIGTERM to SIGKILL: the drain, the grace, and some for the end. */}}
{{- define "eyeline.graceSeconds" -}}
{{- $drain := .Values.settings.drain_delay_seconds | default 0 -}}
{{- $grace := .Values.settings.shutdown_grace_seconds -}}
{{- if kindIs "invalid" $grace -}}{{- $grace = 30 -}}{{- end -}}
{{- add (ceil $drain | int64) (ceil $grace | int64) 10 -}}
{{- end -}}

{{/* Cores of a quantity of CPU, rounded up as the server does: 1500m and 1.5 are 2. */}}
{{- define "eyeline.cores" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text -}}
{{- ceil (divf (trimSuffix "m" $text | float64) 1000) | int64 -}}
{{- else -}}
{{- ceil ($text | float64) | int64 -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a quantity of memory. */}}
{{- define "eyeline.bytes" -}}
{{- $factors := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) -}}
{{- $number := trimSuffix $unit (toString .) | float64 -}}
{{- mulf $number (get $factors $unit | default 1) | int64 -}}
{{- end -}}
