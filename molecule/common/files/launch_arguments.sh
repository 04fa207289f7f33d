#!/bin/sh
# The argument list that a real shell reads from a launch script, a word a line.
sed 's/^exec /printf "%s\\n" /' "$1" | sh
