// The program that the exec rows start: it ends at once.
int main(void) { return 0; }
