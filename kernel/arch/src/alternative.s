# What stands in the place of the instructions between two labels where the CPU has a feature
# (`alternatives.rs`). Taken into each file that has such places, and dropped behind it.
.macro alternative from, to, feature, code
    .pushsection .alternatives, "a"
    .balign 4
    .long \from - .
    .long 771f - .
    .2byte \feature
    .byte \to - \from
    .byte 772f - 771f
    .popsection
    .pushsection .alternative_code, "a"
771:
    \code
772:
    .popsection
.endm
