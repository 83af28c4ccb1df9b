"""Routes and names of other systems, mapped onto the native ones. They contain no lifecycle logic."""
