"""What the paper printed, and the code that computes it again.

The paper: Arcolezi, Couchot, Al Bouna and Xiao, "Improving the utility of locally differentially
private protocols for longitudinal and multidimensional frequency estimates".
"""
