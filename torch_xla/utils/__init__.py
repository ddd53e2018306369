"""Small things that scripts share: exchange with other libraries, files of one tensor each, queues, timing."""
