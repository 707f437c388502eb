"""Launch of the one-launch draft step: memory, arguments, errors. On the executor, and (not run by us) through HIP."""
