"""Trainings that are kept in snapshots, and resume where a killed process was."""
