"""The cpu host's parts, from the C text of an artifact to a loaded program with threads.

Only `tensors` knows plans: to the others a program is text, and a step a batch.

    processor      what this CPU is, and what the compiler may use of it
    toolchain      which C compilers there are, and how to call them
    build          text -> shared library, cached by content
    library        the library through ctypes: a program, opened on tensors and an arena
    memory         zeroed memory in large pages
    logits_memory  memory for logits, used again
    tensors        weights, mapped from a file or packed, where the program expects them
"""
