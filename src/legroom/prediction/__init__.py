"""What a step will need: a trace becomes a timeline, a timeline an estimate. No framework."""
