"""The sandbox in which an agent's file tools and commands run.

`sandbox` opens it, after `level` has found what works here: `bubblewrap`, or `landlock`, both with `seccomp`. `policy`
says what an agent may reach, with `host_paths`, `credentials` and `git` for what must be hidden or protected. `shell`
runs commands in it, `process` starts and ends their processes, and `scratch` makes folders for their temporary files.
"""
