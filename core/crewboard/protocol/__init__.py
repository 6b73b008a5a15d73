"""The rules that several processes share: requests and their mail, reviews, collisions, the supervisor's socket."""
