"""The picture of an artifact's op graph, before and after fusion.

folded     graphs with the layers that are alike reduced to one
origins    which ops of the source graph each fused op replaced
content    the text in each op's box, and how large the box must be
rows       puts ops into rows, and gives sideways positions to them and to the lines that pass them
column     boxes and lines of one graph
draw       three columns, title and legend, rendered by a template
"""
