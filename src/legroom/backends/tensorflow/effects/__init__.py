"""What a step does to the world: variables, tables, data sets, summaries, printed lines."""
