"""A whole decode step as one persistent CUDA kernel (a megakernel), composed of the program's Metal kernels.

    Program -> classes of sequence counts -> StepProgram -> barriers -> CUDA text (steps/NAME.cu) and StepKernelEntry

Everything that depends only on the program is decided here: the launches and their order, the places of their buffers,
the barriers at which blocks wait for each other, and the text. The host compiles the text and decides what depends on
the card: how many blocks are on the GPU at once.
"""
