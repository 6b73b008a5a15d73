"""The rules that several processes share: addressing, requests and their mail, results, the supervisor's socket."""
