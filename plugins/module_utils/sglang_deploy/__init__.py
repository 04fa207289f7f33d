"""The project's logic as plain Python; modules, actions and filters are thin shells over it."""
