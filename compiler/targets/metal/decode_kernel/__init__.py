"""A whole decode step as one persistent CUDA kernel (a megakernel), composed of the plan's Metal kernels.

    plan -> classes of numbers of sequences -> StepProgram -> barriers -> CUDA text (steps/NAME.cu) and StepKernelEntry

Everything that depends on the plan alone is decided here: which launches run inside and in which order, where their
buffers are, before which of them the blocks wait for each other, and the text. The host compiles the text and decides
what depends on the card: how many blocks are on the GPU at once.
"""
