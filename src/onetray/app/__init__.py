"""The Python API: declare tasks and flows, submit jobs, wait for them; `ctx` for handlers."""
