"""What goes on the phone, and the embedded tiny model."""
