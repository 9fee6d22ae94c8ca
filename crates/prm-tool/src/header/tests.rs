use super::*;

const HEADER: &str = "
#define X 1 \\
enum { MLX5_A = 1, };
/* struct mlx5_ifc_not_this_bits { */
struct mlx5_ifc_inner_bits {
	u8         a[0x8];
	u8         reserved_at_8[0x18]; // a gap
};

union mlx5_ifc_either_bits {
	struct mlx5_ifc_inner_bits inner;
	u8 raw[0x60];
};

struct mlx5_ifc_outer_bits {
	u8         x[0x4];
	u8         y[0x20 - 4];
	struct mlx5_ifc_inner_bits one;
	struct mlx5_ifc_inner_bits two[2];
	union {
		u8 left[0x10];
		struct {
			u8 half[0x8];
			u8 rest[0x18];
		};
	};
	union mlx5_ifc_either_bits either;
	struct { u8 hidden[0x10]; } named;
	u8         reserved_at_110[0x10];
	u8         ip[4][0x20];
	union {
		DECLARE_FLEX_ARRAY(struct mlx5_ifc_inner_bits, more);
		u8 pas[][0x40];
	};
};

struct mlx5_ifc_foreign_bits {
	struct mlx5_ifc_elsewhere_bits unknown;
};
";

#[test]
fn ifc_layout_matches_compiler() {
    let facts = parse(HEADER).unwrap();
    let outer = &facts.structs["mlx5_ifc_outer_bits"];
    assert_eq!(outer.bits, 32 + 32 + 64 + 32 + 96 + 32 + 128);
    for (name, span) in [
        ("x", (0, 4)),
        ("y", (4, 28)),
        ("one", (32, 32)),
        ("two", (64, 64)),
        ("left", (128, 16)),
        ("half", (128, 8)),
        ("rest", (136, 24)),
        ("either", (160, 96)),
        ("named", (256, 16)),
        ("ip", (288, 128)),
        ("pas", (416, 0)),
        ("more", (416, 0)),
    ] {
        assert_eq!(outer.fields[name], span, "{name}");
    }
    assert!(!outer.fields.contains_key("hidden"));
    assert!(!facts.structs.contains_key("mlx5_ifc_foreign_bits"));
    assert!(!facts.structs.contains_key("mlx5_ifc_not_this_bits"));
}

#[test]
fn malformed_layout_is_rejected() {
    for text in [
        "struct mlx5_ifc_a_bits { u8 a[0x8];",
        "struct mlx5_ifc_a_bits { int a; };",
        "struct mlx5_ifc_a_bits { u8 a[1 - 2]; };",
        "struct mlx5_ifc_a_bits { u8",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    let constant = "struct mlx5_ifc_a_bits { u8 a[SIZE]; };";
    assert!(parse(constant).unwrap().structs.is_empty());
    let own = "struct mlx5_ifc_a_bits { struct mlx5_ifc_a_bits a; };";
    assert!(parse(own).unwrap().structs.is_empty());
}

#[test]
fn comments_and_directives_are_removed() {
    let text = "a /* b */ c // d\n#define e\n\t #define f (1)\ng_1 h[0x2];\n/* open";
    assert_eq!(tokens(&clean(text).text), ["a", "c", "g_1", "h", "[", "0x2", "]", ";"]);
    let text = "#if LITTLE_ENDIAN\na\n#elif defined(X)\nb\n#else\nc\n#endif\n#ifdef Y\nd\n\
                #else\ne\n#endif";
    assert_eq!(tokens(&clean(text).text), ["b", "d"]);
}

#[test]
fn structure_of_bytes_counts_words_and_bits() {
    let text = "
#define COUNT 2
#define SHIFT 28
struct __rte_packed_begin mlx5_wqe_x {
    rte_be32_t a, b[COUNT];
    __be64 wide;
#if defined(__LITTLE_ENDIAN_BITFIELD)
    __u8 low:4, high:4;
#else
    __u8 high:4, low:4;
#endif
    struct_group(trailer, uint24be_t three; );
    uint32_t flags;
#define X_STATE_SHIFT 28
#define X_STATE_MASK (0xf << X_STATE_SHIFT)
#define X_STATE_OK 0x6
#define X_ONE (1U << 3)
    union { uint16_t c; struct { uint8_t d; uint8_t e; } pair; };
    u8 last[];
    u8 mac[ETHERNET_LL_SIZE];
} __rte_packed_end;
typedef struct { uint16be_t f; bits16_t g; } thing_t;
struct uses { thing_t things[3]; struct mlx5_wqe_x x; };
struct software { struct list *next; };
";
    let headers = read([text]);
    let x = &headers.facts.structs["mlx5_wqe_x"];
    assert_eq!(x.bits, 96 + 64 + 8 + 24 + 32 + 16 + 48);
    for (name, span) in [
        ("a", (0, 32)),
        ("b", (32, 64)),
        ("wide", (96, 64)),
        ("high", (160, 4)),
        ("low", (164, 4)),
        ("three", (168, 24)),
        ("X_STATE_MASK", (192, 4)),
        ("X_ONE", (220, 1)),
        ("c", (224, 16)),
        ("pair.e", (232, 8)),
        ("last", (240, 0)),
        ("mac", (240, 48)),
    ] {
        assert_eq!(x.fields[name], span, "{name}");
    }
    assert!(!x.fields.contains_key("X_STATE_OK"));
    assert_eq!(headers.facts.structs["thing_t"].fields["g"], (16, 16));
    assert_eq!(headers.facts.structs["uses"].fields["x"], (96, 288));
    assert_eq!(headers.skipped, ["software: `*` is not a member of a layout"]);
}

#[test]
fn non_structure_declarations_are_ignored() {
    let last = "struct mlx5_ifc_last_bits { u8 a[0x8]; };";
    for before in [
        "struct other { int a; };",
        "enum mlx5_ifc_kind { A, B, C, D, E, F, G, H };",
        "struct mlx5_ifc_last_bits *pointer;",
        "u8 mlx5_ifc_name { } ;",
    ] {
        let facts = parse(&format!("{before} {last}")).unwrap();
        assert!(facts.structs.keys().eq(["mlx5_ifc_last_bits"]), "{before}");
    }
    assert!(parse("struct mlx5_ifc_a_bits").unwrap().structs.is_empty());
}

#[test]
fn nesting_is_limited_to_sixteen_levels() {
    let mut header = "struct mlx5_ifc_s0_bits { u8 a[0x8]; };".to_owned();
    for i in 1..=17 {
        let inner = i - 1;
        header += &format!(
            "struct mlx5_ifc_s{i}_bits {{ struct mlx5_ifc_s{inner}_bits a; u8 b[0x8]; }};"
        );
    }
    let facts = parse(&header).unwrap();
    assert_eq!(facts.structs["mlx5_ifc_s16_bits"].bits, 17 * 8);
    assert!(!facts.structs.contains_key("mlx5_ifc_s17_bits"));
}
