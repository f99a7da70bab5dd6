"""What the product is made of: pinned files with their hashes, a bill of materials, the wheel (S1).

needed  which packages each way of installing needs
pins    their versions and the hashes of every file that may be installed
sbom    the same as a CycloneDX document
wheel   the project's own wheel, the same bytes wherever it is built
"""
