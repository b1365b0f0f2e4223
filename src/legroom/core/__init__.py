"""The ground floor: records, errors, units, files and events. Imports nothing above it."""
