"""How a program talks about its jobs: submit, wait, result, events, logs; with and without `await`."""
