"""What a service is: from an application to definitions, and the changes of them."""
