/* SPDX-License-Identifier: MIT
 *
 * unit_main.c: the main of test programs that have none of their own. It stands in a library, so
 * that the linker takes it only there.
 */
int unit_tests(void); /* unit.h */

int main(void)
{
    return unit_tests();
}
