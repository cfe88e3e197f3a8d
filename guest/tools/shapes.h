/*
 * Kinds of the arguments of system calls, so that random arguments pass the first checks. A letter
 * per argument:
 *   f descriptor   d directory for a path   p path   b bytes   z how many bytes   o offset   x flags   i small number   n any number
 *   g signal   P process   t timespec   v iovecs   V how many   A page   L bytes, in pages   m PROT_   M MAP_   a advice   u user or group
 *   O path that it may change   k clock   S socket address   l its length   e epoll event   q pollfds   Q futex operation   w whence   c ioctl request   s signal set
 *   R resource   j prctl option   F fcntl command   T pointer to a number   D socket domain   Y socket type   8 the size of a signal set   I ID of a System V object   0 none
 * Calls that are not here, and arguments that are missing, get any number. Numbers:
 * arch/x86/entry/syscalls/syscall_64.tbl of Linux 6.1.
 */
enum { CALLS = 470 };

static const char *const shapes[CALLS] = {
	[0] = "fbz", [1] = "fbz", [2] = "pxi", [3] = "f", [4] = "pb", [5] = "fb", [6] = "pb", [7] = "qVi", [8] = "fow", [9] = "ALmMfo",
	[10] = "ALm", [11] = "AL", [12] = "A", [13] = "gbb8", [14] = "iss8", [15] = "", [16] = "fcb", [17] = "fbzo", [18] = "fbzo",
	[19] = "fvV", [20] = "fvV", [21] = "pi", [22] = "T", [23] = "i000t", [24] = "", [25] = "ALLiA", [26] = "ALi", [27] = "ALb",
	[28] = "ALa", [29] = "izx", [30] = "IAx", [31] = "Iib", [32] = "f", [33] = "fi", [34] = "", [35] = "tt", [36] = "ib", [37] = "i",
	[38] = "ibb", [39] = "", [40] = "ffTz", [41] = "DY0", [42] = "fSl", [43] = "fST", [44] = "fbzxSl", [45] = "fbzxST", [46] = "fbx",
	[47] = "fbx", [48] = "fi", [49] = "fSl", [50] = "fi", [51] = "fST", [52] = "fST", [53] = "DY0T", [54] = "fiibl", [55] = "fiibT",
	[56] = "xATTn", [57] = "", [58] = "", [59] = "pbb", [60] = "i", [61] = "PTi0", [62] = "Pg", [63] = "b", [64] = "iii", [65] = "IbV",
	[66] = "Iiib", [67] = "A", [68] = "ix", [69] = "Ibzx", [70] = "Ibzix", [71] = "Iib", [72] = "fFn", [73] = "fi", [74] = "f",
	[75] = "f", [76] = "Oo", [77] = "fo", [78] = "fbz", [79] = "bz", [80] = "p", [81] = "f", [82] = "OO", [83] = "Oi", [84] = "O",
	[85] = "Oi", [86] = "OO", [87] = "O", [88] = "pO", [89] = "pbz", [90] = "Oi", [91] = "fi", [92] = "Ouu", [93] = "fuu", [94] = "Ouu",
	[95] = "i", [96] = "tt", [97] = "Rb", [98] = "ib", [99] = "b", [100] = "b", [101] = "iPnb", [102] = "", [103] = "ibz", [104] = "",
	[105] = "u", [106] = "u", [107] = "", [108] = "", [109] = "PP", [110] = "", [111] = "", [112] = "", [113] = "uu", [114] = "uu",
	[115] = "ib", [116] = "ib", [117] = "uuu", [118] = "TTT", [119] = "uuu", [120] = "TTT", [121] = "P", [122] = "u", [123] = "u",
	[124] = "P", [125] = "bb", [126] = "bb", [127] = "s8", [128] = "sbt8", [129] = "Pgb", [130] = "s8", [131] = "bb", [132] = "Ot",
	[133] = "Oii", [134] = "p", [135] = "x", [136] = "ib", [137] = "pb", [138] = "fb", [139] = "iii", [140] = "iP", [141] = "iPi",
	[142] = "PT", [143] = "PT", [144] = "PiT", [145] = "P", [146] = "i", [147] = "i", [148] = "Pt", [149] = "AL", [150] = "AL",
	[151] = "i", [152] = "", [153] = "", [157] = "jnnnn", [158] = "iA", [159] = "b", [160] = "Rb", [161] = "p", [162] = "", [163] = "p",
	[164] = "bb", [165] = "ppbxb", [167] = "px", [168] = "p", [170] = "bz", [171] = "bz", [172] = "i", [173] = "nni", [186] = "",
	[187] = "foz", [188] = "Obbzx", [189] = "Obbzx", [190] = "fbbzx", [191] = "pbbz", [192] = "pbbz", [193] = "fbbz", [194] = "pbz",
	[195] = "pbz", [196] = "fbz", [197] = "Ob", [198] = "Ob", [199] = "fb", [200] = "Pg", [201] = "b", [202] = "TQit00", [203] = "Pzb",
	[204] = "Pzb", [206] = "iT", [207] = "n", [208] = "niibt", [209] = "niT", [210] = "nbb", [213] = "i", [216] = "ALmoM", [217] = "fbz",
	[218] = "T", [219] = "", [220] = "IbVt", [221] = "foza", [222] = "k0T", [223] = "ixbb", [224] = "ib", [225] = "i", [226] = "i",
	[227] = "kt", [228] = "kt", [229] = "kt", [230] = "kxtt", [231] = "i", [232] = "febi", [233] = "fife", [234] = "PPg", [235] = "Ob",
	[237] = "ALibzx", [238] = "ibz", [239] = "TbzAx", [240] = "pxib", [241] = "p", [242] = "ibzit", [243] = "ibzTt", [244] = "ib",
	[245] = "ibb", [247] = "iPbx0", [248] = "bbbzi", [249] = "bbbi", [250] = "innnn", [251] = "iii", [252] = "ii", [253] = "",
	[254] = "fpx", [255] = "fi", [256] = "Pibb", [257] = "dpxi", [258] = "dOi", [259] = "dOin", [260] = "dOuux", [261] = "dOt",
	[262] = "dpbx", [263] = "dOx", [264] = "dOdO", [265] = "dOdOx", [266] = "pdO", [267] = "dpbz", [268] = "dOi", [269] = "dpi",
	[270] = "i000tb", [271] = "qVts8", [272] = "x", [273] = "bz", [274] = "PTT", [275] = "fTfTzx", [276] = "ffzx", [277] = "foox",
	[278] = "fvVx", [279] = "PVbbbx", [280] = "dOtx", [281] = "febis8", [282] = "fs8", [283] = "kx", [284] = "i", [285] = "fioo",
	[286] = "fxtt", [287] = "ft", [288] = "fSTx", [289] = "fs8x", [290] = "ix", [291] = "x", [292] = "fix", [293] = "Tx", [294] = "x",
	[295] = "fvVo", [296] = "fvVo", [297] = "PPgb", [298] = "bPifx", [299] = "fbVxt", [300] = "xx", [301] = "fxxdp", [302] = "PRbb",
	[303] = "dpbTx", [304] = "fbx", [305] = "kb", [306] = "f", [307] = "fbVx", [308] = "fx", [309] = "TTb", [310] = "PvVvVx",
	[311] = "PvVvVx", [312] = "PPinn", [313] = "fbx", [314] = "Pbx", [315] = "Pbzx", [316] = "dOdOx", [317] = "ixb", [318] = "bzx",
	[319] = "px", [320] = "fffbx", [321] = "ibz", [322] = "dpbbx", [323] = "x", [324] = "ixi", [325] = "ALx", [326] = "fTfTzx",
	[327] = "fvVoox", [328] = "fvVoox", [329] = "ALmi", [330] = "xx", [331] = "i", [332] = "dpxxb", [333] = "nibbtb", [334] = "bzxi",
	[424] = "fgbx", [425] = "ib", [426] = "fiixbz", [427] = "fibi", [428] = "dpx", [429] = "dOdOx", [430] = "px", [431] = "fibbi",
	[432] = "fxx", [433] = "dpx", [434] = "Px", [435] = "bz", [436] = "iix", [437] = "dpbz", [438] = "ffx", [439] = "dpix",
	[440] = "fvVax", [441] = "febts8", [442] = "dOxbz", [443] = "fipb", [444] = "bzx", [445] = "fibx", [446] = "fx", [447] = "x",
	[448] = "fx", [449] = "bVxtk", [450] = "ALix", [451] = "fbbx", [452] = "dOix",
	[454] = "Tnix", [455] = "Tnnxtk", [456] = "bxii",
};
