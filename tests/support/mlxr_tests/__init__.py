"""What several tests share: small specs, random weights, the tolerance table, and harnesses around the hosts."""
