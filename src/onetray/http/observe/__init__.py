"""What operators see of a server: metrics, the request log, traces, probes."""
