"""Small servers for tests: one honest, the others broken in one way each."""
