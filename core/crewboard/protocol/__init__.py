"""Rules that several processes share: requests and their mail, reviews, collisions, cooldown, supervisor sockets."""
