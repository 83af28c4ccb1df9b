"""The names and routes of other systems, mapped onto the native ones. No lifecycle logic of their own."""
