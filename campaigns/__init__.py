"""Campaigns: attacks on dubito, seeded and bounded in time, each of which ends with a table of what it found.

python -m campaigns.files     files from strangers
python -m campaigns.crash     runs that are killed
python -m campaigns.server    requests from strangers
"""
