"""What this machine lets the process use.

control_groups   where Linux says what a process's control groups allow
threads          how many threads to run
"""
