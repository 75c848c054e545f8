"""Claims about what deploy/ holds: rules, dashboard, chart."""
