"""What memory there is: the host's, the cgroup's, the GPUs', and who else holds it."""
