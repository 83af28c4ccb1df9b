"""Say why a task, a stage or a flow is not further: what it waits for, who holds it, when that ends."""
