"""Whether a model fits into the memory that is free now, and whether memory runs out while it runs.

footprint       what a model takes on a host
free_memory     what is free now: of the machine, of this process's control groups, of a GPU
fitting_arena   the arena to allocate, or an error that says what would fit
context_limit   how long a sequence may be, and why
memory_watch    says while a model runs that memory becomes scarce
"""
