"""Work on input that cannot be trusted, in a process of its own that can do nothing else.

limited_process   starts it, asks it, and ends it
limited_worker    what runs in it: a script that answers questions
seal              takes files, sockets and other processes from it
"""
