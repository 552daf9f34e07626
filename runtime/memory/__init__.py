"""Whether a model fits into the memory that is free now, and whether memory runs out while it runs.

free_memory     what is free now: of the machine, of this process's control groups, of a GPU
fitting_arena   what a model takes, the arena to allocate or an error that says what would fit, and the context
memory_watch    says while a model runs that memory becomes scarce
"""
