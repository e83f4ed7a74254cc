"""The wires between the processes of a node: channels, messages, the scoreboard, fork and birth."""
