"""Where workers leave what they learned for one another: traffic and costs, in Redis or in a file of this host."""
