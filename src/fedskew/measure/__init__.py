"""What can be measured: of the partition, of a round's updates, of what was sent; and how sure a mean is."""
