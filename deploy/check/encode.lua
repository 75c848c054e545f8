-- wrk's request: one sentence to encode. wrk counts every answer but 2xx and 3xx.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"texts": ["A new replica must be ready before an old one stops."]}'
