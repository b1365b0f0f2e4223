"""One package for each framework that Keras runs on; nothing else imports them."""
