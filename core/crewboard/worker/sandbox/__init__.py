"""What an agent's type may not do, the kernel prevents: one wall around `hands` and around every command."""
