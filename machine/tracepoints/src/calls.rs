//! Arguments of system calls on x86-64: their kinds, by number.
//!
//! The kernel reads from this table which arguments are text in a program's memory (for the event
//! `syscall_text`); the command reads how to show each. The signatures are those of Linux' manual
//! pages, section 2.

/// Kind of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentKind {
    /// A C `int`.
    Int,
    /// A C `unsigned int`.
    Uint,
    /// A signed number of 64 bits.
    Long,
    /// A count of bytes or elements.
    Size,
    /// Bits without names in the table.
    Hex,
    /// An address, whose contents are not read.
    Address,
    /// Permission bits of a file.
    Mode,
    /// A file descriptor.
    Fd,
    /// A file descriptor of a directory, or `AT_FDCWD`.
    DirFd,
    /// Address of a path, which ends with a zero byte.
    Path,
    /// Address of another text, which ends with a zero byte.
    Text,
    /// Address of addresses of texts; the last is NULL.
    Vector,
    /// Address of bytes that the call reads; the argument with this number is their count.
    In(u8),
    /// Address of bytes that the call fills; the result is their count.
    Out,
    /// Address of a text that the call makes, which ends with a zero byte.
    OutText,
    /// A number, or bits, with names.
    Named(ValueNames),
}

/// Sets of names for numbers and bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is named after what it names")]
pub enum ValueNames {
    Access,
    Advice,
    ArchPrctl,
    At,
    AtRemove,
    Clock,
    Clone,
    Descriptor,
    EpollOperation,
    Family,
    Fcntl,
    Flock,
    Futex,
    Ioctl,
    Limit,
    Map,
    Mask,
    Message,
    Open,
    Prctl,
    Protection,
    Remap,
    Shutdown,
    Signal,
    SocketType,
    Sync,
    Wait,
    Whence,
}

impl ArgumentKind {
    /// Whether the call fills the memory that the argument points to: its contents are known only
    /// when the call has ended.
    pub fn is_filled(self) -> bool {
        matches!(self, Self::Out | Self::OutText)
    }
}

/// Returns the kinds of the arguments of call `number`; `None` for a number without an entry.
pub fn arguments(number: u64) -> Option<&'static [ArgumentKind]> {
    let at = CALLS.binary_search_by_key(&number, |&(known, _)| u64::from(known)).ok()?;
    Some(CALLS[at].1)
}

use ArgumentKind::{
    Address, DirFd, Fd, Hex, In, Int, Long, Mode, Out, OutText, Path, Size, Text, Uint, Vector,
};

const ACCESS: ArgumentKind = ArgumentKind::Named(ValueNames::Access);
const ADVICE: ArgumentKind = ArgumentKind::Named(ValueNames::Advice);
const ARCH_PRCTL: ArgumentKind = ArgumentKind::Named(ValueNames::ArchPrctl);
const AT: ArgumentKind = ArgumentKind::Named(ValueNames::At);
const AT_REMOVE: ArgumentKind = ArgumentKind::Named(ValueNames::AtRemove);
const CLOCK: ArgumentKind = ArgumentKind::Named(ValueNames::Clock);
const CLONE: ArgumentKind = ArgumentKind::Named(ValueNames::Clone);
const DESCRIPTOR: ArgumentKind = ArgumentKind::Named(ValueNames::Descriptor);
const EPOLL_OPERATION: ArgumentKind = ArgumentKind::Named(ValueNames::EpollOperation);
const FAMILY: ArgumentKind = ArgumentKind::Named(ValueNames::Family);
const FCNTL: ArgumentKind = ArgumentKind::Named(ValueNames::Fcntl);
const FLOCK: ArgumentKind = ArgumentKind::Named(ValueNames::Flock);
const FUTEX: ArgumentKind = ArgumentKind::Named(ValueNames::Futex);
const IOCTL: ArgumentKind = ArgumentKind::Named(ValueNames::Ioctl);
const LIMIT: ArgumentKind = ArgumentKind::Named(ValueNames::Limit);
const MAP: ArgumentKind = ArgumentKind::Named(ValueNames::Map);
const MASK: ArgumentKind = ArgumentKind::Named(ValueNames::Mask);
const MESSAGE: ArgumentKind = ArgumentKind::Named(ValueNames::Message);
const OPEN: ArgumentKind = ArgumentKind::Named(ValueNames::Open);
const PRCTL: ArgumentKind = ArgumentKind::Named(ValueNames::Prctl);
const PROTECTION: ArgumentKind = ArgumentKind::Named(ValueNames::Protection);
const REMAP: ArgumentKind = ArgumentKind::Named(ValueNames::Remap);
const SHUTDOWN: ArgumentKind = ArgumentKind::Named(ValueNames::Shutdown);
const SIGNAL: ArgumentKind = ArgumentKind::Named(ValueNames::Signal);
const SOCKET_TYPE: ArgumentKind = ArgumentKind::Named(ValueNames::SocketType);
const SYNC: ArgumentKind = ArgumentKind::Named(ValueNames::Sync);
const WAIT: ArgumentKind = ArgumentKind::Named(ValueNames::Wait);
const WHENCE: ArgumentKind = ArgumentKind::Named(ValueNames::Whence);

/// The calls, sorted by number.
const CALLS: &[(u16, &[ArgumentKind])] = &[
    (0, &[Fd, Out, Size]),
    (1, &[Fd, In(2), Size]),
    (2, &[Path, OPEN, Mode]),
    (3, &[Fd]),
    (4, &[Path, Address]),
    (5, &[Fd, Address]),
    (6, &[Path, Address]),
    (7, &[Address, Uint, Int]),
    (8, &[Fd, Long, WHENCE]),
    (9, &[Address, Size, PROTECTION, MAP, Fd, Hex]),
    (10, &[Address, Size, PROTECTION]),
    (11, &[Address, Size]),
    (12, &[Address]),
    (13, &[SIGNAL, Address, Address, Size]),
    (14, &[MASK, Address, Address, Size]),
    (15, &[]),
    (16, &[Fd, IOCTL, Address]),
    (17, &[Fd, Out, Size, Long]),
    (18, &[Fd, In(2), Size, Long]),
    (19, &[Fd, Address, Int]),
    (20, &[Fd, Address, Int]),
    (21, &[Path, ACCESS]),
    (22, &[Address]),
    (23, &[Int, Address, Address, Address, Address]),
    (24, &[]),
    (25, &[Address, Size, Size, REMAP, Address]),
    (26, &[Address, Size, SYNC]),
    (27, &[Address, Size, Address]),
    (28, &[Address, Size, ADVICE]),
    (29, &[Int, Size, Hex]),
    (30, &[Int, Address, Hex]),
    (31, &[Int, Int, Address]),
    (32, &[Fd]),
    (33, &[Fd, Fd]),
    (34, &[]),
    (35, &[Address, Address]),
    (36, &[Int, Address]),
    (37, &[Uint]),
    (38, &[Int, Address, Address]),
    (39, &[]),
    (40, &[Fd, Fd, Address, Size]),
    (41, &[FAMILY, SOCKET_TYPE, Int]),
    (42, &[Fd, Address, Int]),
    (43, &[Fd, Address, Address]),
    (44, &[Fd, In(2), Size, MESSAGE, Address, Uint]),
    (45, &[Fd, Out, Size, MESSAGE, Address, Address]),
    (46, &[Fd, Address, MESSAGE]),
    (47, &[Fd, Address, MESSAGE]),
    (48, &[Fd, SHUTDOWN]),
    (49, &[Fd, Address, Int]),
    (50, &[Fd, Int]),
    (51, &[Fd, Address, Address]),
    (52, &[Fd, Address, Address]),
    (53, &[FAMILY, SOCKET_TYPE, Int, Address]),
    (54, &[Fd, Int, Int, Address, Int]),
    (55, &[Fd, Int, Int, Address, Address]),
    (56, &[CLONE, Address, Address, Address, Address]),
    (57, &[]),
    (58, &[]),
    (59, &[Path, Vector, Address]),
    (60, &[Int]),
    (61, &[Int, Address, WAIT, Address]),
    (62, &[Int, SIGNAL]),
    (63, &[Address]),
    (64, &[Int, Int, Hex]),
    (65, &[Int, Address, Uint]),
    (66, &[Int, Int, Int, Address]),
    (67, &[Address]),
    (68, &[Int, Hex]),
    (69, &[Int, Address, Size, Hex]),
    (70, &[Int, Address, Size, Long, Hex]),
    (71, &[Int, Int, Address]),
    (72, &[Fd, FCNTL, Hex]),
    (73, &[Fd, FLOCK]),
    (74, &[Fd]),
    (75, &[Fd]),
    (76, &[Path, Long]),
    (77, &[Fd, Long]),
    (78, &[Fd, Address, Uint]),
    (79, &[OutText, Size]),
    (80, &[Path]),
    (81, &[Fd]),
    (82, &[Path, Path]),
    (83, &[Path, Mode]),
    (84, &[Path]),
    (85, &[Path, Mode]),
    (86, &[Path, Path]),
    (87, &[Path]),
    (88, &[Text, Path]),
    (89, &[Path, Out, Size]),
    (90, &[Path, Mode]),
    (91, &[Fd, Mode]),
    (92, &[Path, Int, Int]),
    (93, &[Fd, Int, Int]),
    (94, &[Path, Int, Int]),
    (95, &[Mode]),
    (96, &[Address, Address]),
    (97, &[LIMIT, Address]),
    (98, &[Int, Address]),
    (99, &[Address]),
    (100, &[Address]),
    (101, &[Long, Int, Address, Address]),
    (102, &[]),
    (103, &[Int, Address, Int]),
    (104, &[]),
    (105, &[Int]),
    (106, &[Int]),
    (107, &[]),
    (108, &[]),
    (109, &[Int, Int]),
    (110, &[]),
    (111, &[]),
    (112, &[]),
    (113, &[Int, Int]),
    (114, &[Int, Int]),
    (115, &[Int, Address]),
    (116, &[Int, Address]),
    (117, &[Int, Int, Int]),
    (118, &[Address, Address, Address]),
    (119, &[Int, Int, Int]),
    (120, &[Address, Address, Address]),
    (121, &[Int]),
    (122, &[Int]),
    (123, &[Int]),
    (124, &[Int]),
    (125, &[Address, Address]),
    (126, &[Address, Address]),
    (127, &[Address, Size]),
    (128, &[Address, Address, Address, Size]),
    (129, &[Int, SIGNAL, Address]),
    (130, &[Address, Size]),
    (131, &[Address, Address]),
    (132, &[Path, Address]),
    (133, &[Path, Mode, Hex]),
    (135, &[Hex]),
    (136, &[Hex, Address]),
    (137, &[Path, Address]),
    (138, &[Fd, Address]),
    (139, &[Int, Hex, Hex]),
    (140, &[Int, Int]),
    (141, &[Int, Int, Int]),
    (142, &[Int, Address]),
    (143, &[Int, Address]),
    (144, &[Int, Int, Address]),
    (145, &[Int]),
    (146, &[Int]),
    (147, &[Int]),
    (148, &[Int, Address]),
    (149, &[Address, Size]),
    (150, &[Address, Size]),
    (151, &[Hex]),
    (152, &[]),
    (153, &[]),
    (155, &[Path, Path]),
    (157, &[PRCTL, Hex, Hex, Hex, Hex]),
    (158, &[ARCH_PRCTL, Address]),
    (159, &[Address]),
    (160, &[LIMIT, Address]),
    (161, &[Path]),
    (162, &[]),
    (163, &[Path]),
    (164, &[Address, Address]),
    (165, &[Path, Path, Text, Hex, Address]),
    (166, &[Path, Hex]),
    (167, &[Path, Hex]),
    (168, &[Path]),
    (169, &[Hex, Hex, Hex, Address]),
    (170, &[In(1), Size]),
    (171, &[In(1), Size]),
    (186, &[]),
    (187, &[Fd, Long, Size]),
    (188, &[Path, Text, Address, Size, Hex]),
    (189, &[Path, Text, Address, Size, Hex]),
    (190, &[Fd, Text, Address, Size, Hex]),
    (191, &[Path, Text, Address, Size]),
    (192, &[Path, Text, Address, Size]),
    (193, &[Fd, Text, Address, Size]),
    (194, &[Path, Address, Size]),
    (195, &[Path, Address, Size]),
    (196, &[Fd, Address, Size]),
    (197, &[Path, Text]),
    (198, &[Path, Text]),
    (199, &[Fd, Text]),
    (200, &[Int, SIGNAL]),
    (201, &[Address]),
    (202, &[Address, FUTEX, Uint, Address, Address, Uint]),
    (203, &[Int, Size, Address]),
    (204, &[Int, Size, Address]),
    (206, &[Uint, Address]),
    (207, &[Hex]),
    (208, &[Hex, Long, Long, Address, Address]),
    (209, &[Hex, Long, Address]),
    (210, &[Hex, Address, Address]),
    (213, &[Int]),
    (217, &[Fd, Address, Uint]),
    (218, &[Address]),
    (219, &[]),
    (220, &[Int, Address, Uint, Address]),
    (221, &[Fd, Long, Long, Int]),
    (222, &[CLOCK, Address, Address]),
    (223, &[Int, Int, Address, Address]),
    (224, &[Int, Address]),
    (225, &[Int]),
    (226, &[Int]),
    (227, &[CLOCK, Address]),
    (228, &[CLOCK, Address]),
    (229, &[CLOCK, Address]),
    (230, &[CLOCK, Hex, Address, Address]),
    (231, &[Int]),
    (232, &[Fd, Address, Int, Int]),
    (233, &[Fd, EPOLL_OPERATION, Fd, Address]),
    (234, &[Int, Int, SIGNAL]),
    (235, &[Path, Address]),
    (237, &[Address, Size, Int, Address, Size, Hex]),
    (238, &[Int, Address, Size]),
    (239, &[Address, Address, Size, Address, Hex]),
    (240, &[Text, OPEN, Mode, Address]),
    (241, &[Text]),
    (242, &[Fd, Address, Size, Uint, Address]),
    (243, &[Fd, Address, Size, Address, Address]),
    (244, &[Fd, Address]),
    (245, &[Fd, Address, Address]),
    (247, &[Int, Int, Address, WAIT, Address]),
    (251, &[Int, Int, Int]),
    (252, &[Int, Int]),
    (253, &[]),
    (254, &[Fd, Path, Hex]),
    (255, &[Fd, Int]),
    (256, &[Int, Size, Address, Address]),
    (257, &[DirFd, Path, OPEN, Mode]),
    (258, &[DirFd, Path, Mode]),
    (259, &[DirFd, Path, Mode, Hex]),
    (260, &[DirFd, Path, Int, Int, AT]),
    (261, &[DirFd, Path, Address]),
    (262, &[DirFd, Path, Address, AT]),
    (263, &[DirFd, Path, AT_REMOVE]),
    (264, &[DirFd, Path, DirFd, Path]),
    (265, &[DirFd, Path, DirFd, Path, AT]),
    (266, &[Text, DirFd, Path]),
    (267, &[DirFd, Path, Out, Size]),
    (268, &[DirFd, Path, Mode]),
    (269, &[DirFd, Path, ACCESS]),
    (270, &[Int, Address, Address, Address, Address, Address]),
    (271, &[Address, Uint, Address, Address, Size]),
    (272, &[CLONE]),
    (273, &[Address, Size]),
    (274, &[Int, Address, Address]),
    (275, &[Fd, Address, Fd, Address, Size, Hex]),
    (276, &[Fd, Fd, Size, Hex]),
    (277, &[Fd, Long, Long, Hex]),
    (278, &[Fd, Address, Size, Hex]),
    (279, &[Int, Size, Address, Address, Address, Hex]),
    (280, &[DirFd, Path, Address, AT]),
    (281, &[Fd, Address, Int, Int, Address, Size]),
    (282, &[Fd, Address, Size]),
    (283, &[CLOCK, DESCRIPTOR]),
    (284, &[Uint]),
    (285, &[Fd, Hex, Long, Long]),
    (286, &[Fd, Hex, Address, Address]),
    (287, &[Fd, Address]),
    (288, &[Fd, Address, Address, SOCKET_TYPE]),
    (289, &[Fd, Address, Size, DESCRIPTOR]),
    (290, &[Uint, DESCRIPTOR]),
    (291, &[DESCRIPTOR]),
    (292, &[Fd, Fd, DESCRIPTOR]),
    (293, &[Address, DESCRIPTOR]),
    (294, &[DESCRIPTOR]),
    (295, &[Fd, Address, Int, Long]),
    (296, &[Fd, Address, Int, Long]),
    (297, &[Int, Int, SIGNAL, Address]),
    (298, &[Address, Int, Int, Fd, Hex]),
    (299, &[Fd, Address, Uint, MESSAGE, Address]),
    (300, &[Hex, Hex]),
    (301, &[Fd, Hex, Hex, DirFd, Path]),
    (302, &[Int, LIMIT, Address, Address]),
    (303, &[DirFd, Path, Address, Address, AT]),
    (304, &[Fd, Address, OPEN]),
    (305, &[CLOCK, Address]),
    (306, &[Fd]),
    (307, &[Fd, Address, Uint, MESSAGE]),
    (308, &[Fd, CLONE]),
    (309, &[Address, Address, Address]),
    (310, &[Int, Address, Uint, Address, Uint, Hex]),
    (311, &[Int, Address, Uint, Address, Uint, Hex]),
    (312, &[Int, Int, Int, Hex, Hex]),
    (313, &[Fd, Text, Hex]),
    (314, &[Int, Address, Hex]),
    (315, &[Int, Address, Uint, Hex]),
    (316, &[DirFd, Path, DirFd, Path, Hex]),
    (317, &[Uint, Hex, Address]),
    (318, &[Address, Size, Hex]),
    (319, &[Text, Hex]),
    (320, &[Fd, Fd, Size, Text, Hex]),
    (321, &[Int, Address, Uint]),
    (322, &[DirFd, Path, Vector, Address, AT]),
    (323, &[DESCRIPTOR]),
    (324, &[Int, Hex, Int]),
    (325, &[Address, Size, Hex]),
    (326, &[Fd, Address, Fd, Address, Size, Hex]),
    (327, &[Fd, Address, Int, Long, Hex]),
    (328, &[Fd, Address, Int, Long, Hex]),
    (329, &[Address, Size, PROTECTION, Int]),
    (330, &[Hex, Hex]),
    (331, &[Int]),
    (332, &[DirFd, Path, AT, Hex, Address]),
    (333, &[Hex, Long, Long, Address, Address, Address]),
    (334, &[Address, Uint, Hex, Uint]),
    (424, &[Fd, SIGNAL, Address, Hex]),
    (425, &[Uint, Address]),
    (426, &[Fd, Uint, Uint, Hex, Address, Size]),
    (427, &[Fd, Uint, Address, Uint]),
    (428, &[DirFd, Path, Hex]),
    (429, &[DirFd, Path, DirFd, Path, Hex]),
    (430, &[Text, Hex]),
    (431, &[Fd, Uint, Text, Address, Int]),
    (432, &[Fd, Hex, Hex]),
    (433, &[DirFd, Path, Hex]),
    (434, &[Int, Hex]),
    (435, &[Address, Size]),
    (436, &[Uint, Uint, Hex]),
    (437, &[DirFd, Path, Address, Size]),
    (438, &[Fd, Int, Hex]),
    (439, &[DirFd, Path, ACCESS, AT]),
    (440, &[Fd, Address, Size, ADVICE, Hex]),
    (441, &[Fd, Address, Int, Address, Address, Size]),
    (442, &[DirFd, Path, Hex, Address, Size]),
    (447, &[DESCRIPTOR]),
    (448, &[Fd, Hex]),
    (449, &[Address, Uint, Hex, Address, CLOCK]),
    (450, &[Address, Size, Size, Hex]),
    (451, &[Fd, Address, Address, Hex]),
    (452, &[DirFd, Path, Mode, AT]),
    (454, &[Address, Hex, Int, Hex]),
    (455, &[Address, Hex, Hex, Hex, Address, CLOCK]),
    (456, &[Address, Hex, Int, Int]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_sorted_and_lengths_are_arguments() {
        assert!(CALLS.is_sorted_by_key(|&(number, _)| number));
        for (number, kinds) in CALLS {
            assert!(kinds.len() <= 6, "{number}");
            for kind in *kinds {
                let In(length) = kind else { continue };
                assert_eq!(kinds.get(usize::from(*length)), Some(&Size), "{number}");
            }
        }
        assert_eq!(arguments(257), Some(&[DirFd, Path, OPEN, Mode][..]));
        assert_eq!(arguments(335), None);
    }
}
