"""The Python API: declare tasks and flows, submit jobs, wait for them, and what handlers see (`ctx`)."""
