//! Macros that make the type, the traits and the builder methods of each operation from one entry.

/// Declares the operations. An entry of `declared` has, in this order:
///
/// - the request's type, and the name of the operation;
/// - `completes`: the operation that its completions report, whose value is the opcode; the
///   `op_mod`; the class, of which a service carries all operations or none; the capability that it
///   needs, if any;
/// - the arguments of `new`;
/// - the last word of the control segment, if it is used;
/// - the segments after the control segment, in the order of the WQE, each made from the arguments
///   of `new`;
/// - the name of the operation as a datagram, if it can be one; the WQE then has the address vector
///   before these segments.
///
/// `elsewhere` lists types with their own constructors and a hand-written
/// [`Encode`](super::encode::Encode).
///
/// The macro makes the types, their traits, and the list `OPERATIONS` of all entries.
macro_rules! operations {
    (
        declared {$(
            $(#[$attr:meta])*
            $name:ident $(<$p:ident: $bound:ident>)? = $text:literal {
                completes: $operation:ident, op_mod: $op_mod:literal,
                class: $class:ident $(, needs: $needs:ident)?;
                $(#[$new_attr:meta])*
                new($($arg:ident: $arg_type:ty),*);
                $(control: $word:ident = $control:expr;)?
                segments: { $($segment:ident: $segment_type:ty = $value:expr),* };
                $(datagram: $datagram:literal;)?
            }
        )*}
        elsewhere {$(
            $other:ident<$life:lifetime $(, $q:ident: $q_bound:ident)?> = $other_text:literal {
                completes: $other_operation:ident, op_mod: $other_op_mod:literal,
                class: $other_class:ident $(, needs: $other_needs:ident)?;
            }
        )*}
    ) => {
        $(
            $(#[$attr])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name $(<$p>)? {
                $($segment: $segment_type,)*
                $(control: $word,)?
                options: Options,
            }

            impl $(<$p: $bound>)? $name $(<$p>)? {
                $(#[$new_attr])*
                #[inline(always)]
                pub const fn new($($arg: $arg_type),*) -> Self {
                    Self {
                        $($segment: $value,)*
                        $(control: $control,)?
                        options: Options::NONE,
                    }
                }
            }

            options!($name $(<$p: $bound>)?);
            entry!(impl ($(<$p: $bound>)?) $name $(<$p>)?: $text, $operation, $op_mod,
                   $class $(, $needs)?);

            impl $(<$p: $bound>)? Encode for $name $(<$p>)? {
                const INLINE: bool = false $(|| <$segment_type as Segment>::INLINE)*;
                const DS: u32 = 1 $(+ <$segment_type as Segment>::DS)*;

                #[inline(always)]
                #[allow(private_interfaces, reason = "the trait cannot be named outside")]
                fn ds(&self, _limits: &Limits) -> Result<u32, PostError> {
                    let ds = 1 $(+ self.$segment.ds(_limits)?)*;
                    let most = <Self as Request>::INFO.max_ds();
                    if ds <= most { Ok(ds) } else { Err(PostError::TooManySges) }
                }

                #[inline(always)]
                #[allow(private_interfaces, reason = "the trait cannot be named outside")]
                fn fast_ds(&self, _limits: &Limits) -> Option<u32> {
                    let ds = 1 $(+ self.$segment.fast_ds(_limits)?)*;
                    (ds <= const { <Self as Request>::INFO.max_ds() }).then_some(ds)
                }

                #[inline(always)]
                #[allow(private_interfaces, reason = "the trait cannot be named outside")]
                fn write(&self, _wqe: &Wqe<'_>, _at: usize, _: &Limits) {
                    $(let _at = self.$segment.write(_wqe, _at);)*
                }

                #[inline(always)]
                #[allow(private_interfaces, reason = "the trait cannot be named outside")]
                fn options(&self) -> Options {
                    self.options
                }

                $(
                    #[inline(always)]
                    fn ctrl_imm(&self) -> $word {
                        self.control
                    }
                )?
            }

            $(datagram!($name: $datagram);)?
        )*
        $(
            entry!(impl ($(<$q: $q_bound>)?) $other<$life $(, $q)?>: $other_text,
                   $other_operation, $other_op_mod, $other_class $(, $other_needs)?);
        )*

        /// Every operation that has a request type.
        pub const OPERATIONS: &[OperationInfo] = &[
            $(
                <$name $(<any!($p)>)? as Request>::INFO,
                $(<SendTo<'_, any!($datagram $name)> as Request>::INFO,)?
            )*
            $(<$other<$life $(, any!($q))?> as Request>::INFO,)*
        ];
    };
}
pub(super) use operations;

/// Gives a generic operation a concrete type parameter, for the list of operations.
macro_rules! any {
    ($p:ident) => { Sge };
    ($datagram:literal $name:ident) => { $name<Sge> };
}
pub(super) use any;

/// The constant [`OperationInfo`](super::OperationInfo) of a request type.
macro_rules! entry {
    (impl ($($generics:tt)*) $type:ty: $text:literal, $operation:ident, $op_mod:literal,
     $class:ident $(, $needs:ident)?) => {
        impl $($generics)* Request for $type {
            type Class = class::$class;
            const INFO: OperationInfo = OperationInfo {
                name: $text,
                operation: WcOpcode::$operation,
                op_mod: $op_mod,
                class: Class::$class,
                needs: entry!(@ $($needs)?),
                ds: <Self as Encode>::DS,
            };
        }
    };
    (@) => { None };
    (@ $needs:ident) => { Some(Capability::$needs) };
}
pub(super) use entry;

/// The method `to` of operations that can be datagrams.
macro_rules! datagram {
    ($name:ident: $text:literal) => {
        impl<P: Payload> $name<P> {
            /// Adds the destination, which makes the request a datagram: call it last ([`SendTo`]).
            #[inline(always)]
            pub const fn to(self, destination: &Destination) -> SendTo<'_, Self> {
                SendTo::new(self, destination)
            }
        }

        impl<P: Payload> Request for SendTo<'_, $name<P>> {
            type Class = class::Datagram;
            const INFO: OperationInfo = OperationInfo {
                name: $text,
                class: Class::Datagram,
                ds: <Self as Encode>::DS,
                ..<$name<P> as Request>::INFO
            };
        }
    };
}
pub(super) use datagram;

/// The builder methods that every request has.
macro_rules! options {
    ($name:ident $(<$p:ident: $bound:ident>)?) => {
        options!(impl ($(<$p: $bound>)?) $name $(<$p>)?);
    };
    (impl ($($generics:tt)*) $type:ty) => {
        impl $($generics)* $type {
            /// Requests a completion. Without it, only a failed request has one.
            #[inline(always)]
            pub const fn signaled(mut self) -> Self {
                self.options.signaled = true;
                self
            }

            /// Waits for earlier READs, atomics and UMRs: [`Fence::Full`].
            #[inline(always)]
            pub const fn fence(self) -> Self {
                self.fence_with(Fence::Full)
            }

            /// Waits for the earlier requests that `fence` selects.
            #[inline(always)]
            pub const fn fence_with(mut self, fence: Fence) -> Self {
                self.options.fence = fence;
                self
            }

            /// Makes the peer's receive completion solicited: it also triggers the event of a CQ
            /// that is armed for solicited completions only. It has no effect on operations without
            /// a receive completion.
            #[inline(always)]
            pub const fn solicited(mut self) -> Self {
                self.options.solicited = true;
                self
            }
        }
    };
}
pub(super) use options;
