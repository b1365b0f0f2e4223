"""Parts of a model that are run again for their gradients."""
