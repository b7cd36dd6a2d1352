"""Check the promises of methods and other components, and measure a method's cost, on a miniature federation."""
